"""Phrases on the buttons, menus and notices of web pages.

A `SURE` phrase alone on a line is always boilerplate. `MAYBE` phrases also occur in prose, lists
and code; they count only among others of their kind. Both are compared without case and without the
marks and icons around them. English first; then German, French, Spanish, Portuguese, Italian, Dutch
and Russian, and the most common ones of Chinese and Japanese.
"""

# kind → phrases, one a line
SURE: dict[str, str] = {
    "cookies": """
accept cookies|accept all cookies|allow all cookies|reject all cookies|cookie settings
cookie preferences|cookie policy|manage cookies|manage cookie preferences|cookie consent
privacy & cookies policy|strictly necessary cookies|necessary cookies only|customise cookies
alle cookies akzeptieren|cookies akzeptieren|cookie-einstellungen
nur notwendige cookies|accepter les cookies|accepter tous les cookies
paramètres des cookies|gérer les cookies|aceptar cookies|aceptar todas las cookies
configuración de cookies|política de cookies|aceitar cookies|aceitar todos os cookies
accetta tutti i cookie|accetta i cookie|alle cookies accepteren|cookies accepteren
принять все cookie|принять cookies
""",
    "navigation": """
skip to content|skip to main content|skip to navigation|skip navigation|skip to footer
skip to search|jump to navigation|jump to content|jump to main content|toggle navigation
toggle menu|toggle search|toggle sidebar|open menu|close menu|main menu|main navigation
primary navigation|primary menu|mobile menu|navigation menu|back to top|scroll to top
return to top|go to top|back to homepage|back to home page|return to homepage|back to home
open search|close search|search this site|search this website|search the site
zum inhalt springen|direkt zum inhalt|zum hauptinhalt springen|menü öffnen|menü schließen
nach oben scrollen|aller au contenu|aller au contenu principal|passer au contenu|retour en haut
haut de page|ir al contenido|saltar al contenido|pasar al contenido principal|volver arriba
ir para o conteúdo|pular para o conteúdo|voltar ao topo|vai al contenuto|salta al contenuto
ga naar de inhoud|naar de inhoud|naar boven|перейти к содержимому
перейти к содержанию|跳至内容|跳到主要内容|回到顶部|コンテンツへスキップ|ページの先頭へ|トップへ戻る
""",
    "share": """
share this|share this article|share this post|share this page|share this story
share this entry|share on facebook|share on twitter|share on x|share on linkedin
share on pinterest|share on whatsapp|share on reddit|share on tumblr|share via email
share by email|share with friends|share on social media|share to facebook|share to twitter
click to share on facebook|click to share on twitter|click to email a link to a friend
click to print|tweet this|email this article|email this page
email a friend|send to a friend|print this page|print this article|print this post|print article
printer friendly|printer-friendly version|print-friendly version
copy link to clipboard|follow us on facebook|follow us on twitter
follow us on instagram|follow us on social media|like us on facebook|find us on facebook
connect with us|save to pinterest
auf facebook teilen|auf twitter teilen|beitrag teilen|artikel teilen|diesen artikel teilen
seite drucken|artikel drucken|folgen sie uns|partager sur facebook|partager sur twitter
partager cet article|imprimer cette page|suivez-nous|suivez nous|compartir en facebook
compartir en twitter|comparte esto|compartir este artículo|síguenos|compartilhar no facebook
compartilhe isso|compartilhar no twitter|siga-nos|condividi su facebook|condividi su twitter
condividi questo articolo|seguici|seguici su facebook|deel op facebook|deel dit artikel|volg ons
поделиться в facebook|поделиться ссылкой|シェアする
""",
    "subscribe": """
subscribe today|subscribe to our newsletter|subscribe to newsletter
subscribe via email|subscribe by email|subscribe to blog via email|subscribe to our mailing list
subscribe to our channel|join our newsletter|join our mailing list|join the mailing list
newsletter signup|newsletter sign up|newsletter sign-up|sign up for our newsletter
sign up for our newsletters|sign up to our newsletter|sign up for the newsletter
get our newsletter|get the newsletter|enter your email address
enter your email address to subscribe to this blog and receive notifications of new posts by email
newsletter abonnieren|jetzt abonnieren|newsletter anmelden|zum newsletter anmelden
s'abonner à la newsletter|abonnez-vous à notre newsletter|inscrivez-vous à notre newsletter
suscríbete a nuestro boletín|suscríbete a nuestra newsletter|assine nossa newsletter
inscreva-se na nossa newsletter|iscriviti alla newsletter|iscriviti alla nostra newsletter
schrijf je in voor onze nieuwsbrief|подписаться на рассылку|подписаться на новости
""",
    "more": """
read more|read the full article|read full article|read the full story
read full story|read the rest of this entry|continue reading|keep reading
load more posts|load more comments|show more comments|view all posts
view all articles|see all posts|more stories|more from this author
related articles|related posts|related stories|related news|you may also like
you might also like|you may also be interested in|you might also be interested in
recommended for you|recommended articles|recommended posts|recent posts|latest posts
popular posts|most read|trending now|older posts|newer posts|previous post
next post|previous article|next article|click here to read more
weiterlesen|mehr lesen|mehr erfahren|mehr anzeigen|ähnliche artikel|ähnliche beiträge
das könnte sie auch interessieren|letzte beiträge|meistgelesen
lire la suite|lire plus|en savoir plus|articles similaires|articles récents
vous aimerez aussi|à lire aussi|leer más|seguir leyendo|sigue leyendo|continuar leyendo
artículos relacionados|entradas recientes|también te puede interesar|leia mais|ler mais
continue lendo|continuar lendo|artigos relacionados|posts relacionados
posts recentes|leggi tutto|leggi di più|continua a leggere|articoli correlati|articoli recenti
potrebbe interessarti anche|lees meer|lees verder|gerelateerde artikelen|читать далее
читать дальше|читайте также|похожие статьи|阅读更多|阅读全文|查看更多|相关文章|続きを読む
もっと見る|関連記事
""",
    "login": """
forgot password|forgot your password|lost your password|forgot username|reset your password
log in to your account|sign in to your account|login to your account|log in or register
log in / register|login / register|login or register|sign in / register|login/register
sign in or register|log in / sign up|sign in / sign up|login / signup|create an account
create a free account|create new account|sign up now
sign up for free|not a member yet|already a member|already have an account|don't have an account
not registered yet|log in with facebook|sign in with google|continue with google
sign in with facebook|continue with facebook|log in to comment|login to comment
log in to reply|log in to leave a comment|you must be logged in to post a comment
you must be logged in to reply|you must be logged in to comment|you need to be logged in to comment
passwort vergessen|angemeldet bleiben|jetzt registrieren|noch kein konto
mot de passe oublié|se souvenir de moi|créer un compte|olvidaste tu contraseña
crear una cuenta|esqueceu sua senha|esqueci minha senha|criar uma conta
password dimenticata|crea un account|wachtwoord vergeten|забыли пароль|запомнить меня
忘记密码|パスワードをお忘れですか
""",
    "comments": """
leave a comment|leave a reply|leave a reply cancel reply|post a comment|add a comment
add a new comment|write a comment|submit comment|cancel reply
click here to cancel reply|be the first to comment
be the first to leave a comment|comments are closed|comments are closed here
comments closed|your email address will not be published
your email address will not be published. required fields are marked
required fields are marked|your email will not be published|notify me of new posts by email
notify me of new comments via email|notify me of follow-up comments by email
notify me of followup comments via e-mail|report this comment|view all comments
save my name, email, and website in this browser for the next time i comment
save my name, email and website in this browser for the next time i comment
this site uses akismet to reduce spam. learn how your comment data is processed
kommentar hinterlassen|schreibe einen kommentar|kommentar schreiben|antworten abbrechen
deine e-mail-adresse wird nicht veröffentlicht|laisser un commentaire|ajouter un commentaire
annuler la réponse|votre adresse e-mail ne sera pas publiée|deja un comentario
deja una respuesta|cancelar la respuesta|tu dirección de correo electrónico no será publicada
deixe um comentário|deixe uma resposta|cancelar resposta|o seu endereço de e-mail não será publicado
lascia un commento|annulla risposta|il tuo indirizzo email non sarà pubblicato
laat een reactie achter|geef een reactie|добавить комментарий|оставить комментарий
ваш адрес email не будет опубликован|发表评论|发表回复|コメントを残す
""",
    "advertising": """
advertisement - continue reading below|story continues below advertisement
article continues below advertisement|continue reading below advertisement
advertisement - scroll to continue|scroll to continue with content|skip ad|skip advertisement
report this ad|why this ad|sponsored content|sponsored links|sponsored post|ads by google
advertise with us|this post may contain affiliate links
weiter nach der anzeige|la suite après la publicité|continua después de la publicidad
continua após a publicidade
""",
    "copyright": """
powered by wordpress|proudly powered by wordpress
powered by blogger
""",
    "browser": """
please enable javascript|please enable javascript to view this page|javascript is disabled
please enable javascript to continue|javascript must be enabled|javascript is required
please turn on javascript|you need to enable javascript to run this app
this site requires javascript|your browser does not support javascript
your browser does not support the video tag|your browser does not support the audio element
your browser does not support html5 video|your browser does not support iframes
your browser is out of date|please upgrade your browser|you are using an outdated browser
javascript seems to be disabled in your browser|bitte aktivieren sie javascript
veuillez activer javascript|por favor, active javascript|habilite javascript
""",
}

MAYBE: dict[str, str] = {
    "navigation": """
home|home page|homepage|about|about us|about me|contact|contact us|contacts|get in touch|blog
news|products|our products|services|our services|solutions|shop|store|shop now|cart|my cart
view cart|shopping cart|basket|checkout|wishlist|faq|faqs|help|help center|support|careers|jobs
press|media|events|gallery|portfolio|testimonials|team|our team|partners|locations|menu|search
close|sitemap|site map|privacy|privacy policy|accept all|terms|terms of service|terms of use|legal
terms & conditions|terms and conditions|disclaimer|accessibility|archives|categories|tags
sport|sports|entertainment|lifestyle|business|politics|technology|opinion|video|videos|photos
next|previous|prev|back|forum|forums|members|donate|resources|pricing|features|customer service
no comments|most popular|show more|view more|see more|load more|search for|read next|up next
startseite|über uns|kontakt|impressum|datenschutz|datenschutzerklärung|agb|produkte
dienstleistungen|leistungen|aktuelles|karriere|suche|menü|warenkorb|unternehmen|hilfe
accueil|à propos|qui sommes-nous|nous contacter|actualités|produits|boutique|panier
recherche|rechercher|mentions légales|politique de confidentialité|plan du site|aide
inicio|quiénes somos|sobre nosotros|contacto|contáctenos|noticias|productos|servicios|tienda
carrito|buscar|aviso legal|política de privacidad|mapa del sitio|ayuda|início|sobre|quem somos
sobre nós|contato|contacto|notícias|produtos|serviços|loja|carrinho|política de privacidade
chi siamo|contatti|notizie|prodotti|servizi|negozio|carrello|cerca|note legali
informativa sulla privacy|over ons|nieuws|producten|diensten|winkelwagen|zoeken|privacybeleid
главная|о нас|о компании|контакты|новости|услуги|продукция|магазин|корзина|поиск|меню
首页|关于我们|联系我们|新闻|产品|服务|网站地图|ホーム|会社概要|お問い合わせ|ニュース|プライバシーポリシー
""",
    "share": """
follow us|pin it|pin this|email this|like this|print friendly
share|tweet|pin|print|email|e-mail|facebook|twitter|linkedin|pinterest|instagram|whatsapp
youtube|tiktok|reddit|tumblr|telegram|snapchat|flickr|rss|rss feed|google+|google plus
stumbleupon|digg|delicious|vimeo|copy link|copied|bookmark|like|likes|shares|follow
teilen|drucken|merken|partager|imprimer|compartir|imprimir|compartilhar|condividi|stampa|delen
поделиться|печать|вконтакте|одноклассники|分享|打印|シェア|ツイート|印刷
""",
    "login": """
remember me|create account|register now|subscribe now|your email address|enter your email
log in|login|log out|logout|sign in|sign up|signup|sign out|register|my account|account|username
password|subscribe|newsletter|profile|anmelden|einloggen|registrieren|mein konto|abmelden
se connecter|connexion|s'inscrire|mon compte|iniciar sesión|registrarse|mi cuenta|entrar
cadastre-se|minha conta|accedi|registrati|il mio account|inloggen|registreren|mijn account
войти|вход|регистрация|登录|注册|ログイン|新規登録
""",
    "comments": """
no comments yet|comments off|add comment|post comment|report abuse
reply|comment|comments|0 comments|1 comment|post|submit|antworten|kommentare|répondre
commentaires|responder|comentarios|comentários|rispondi|commenti|reageren|ответить|комментарии
""",
    "advertising": """
advertisement|advertisements|sponsored|advertising|advertise|ad|ads|anzeige|werbung|publicité
publicidad|publicidade|pubblicità|advertentie|реклама|广告|広告
""",
    "more": """
more|more info|more information|learn more|view all|see all|details|mehr|weiter|suite|más|mais
altro|meer|ещё|更多|もっと
""",
}


def phrase_kinds(table: dict[str, str]) -> dict[str, str]:
    """Return a table from phrase to kind."""
    return {
        phrase: kind
        for kind, block in table.items()
        for line in block.split("\n")
        for phrase in line.split("|")
        if phrase
    }
